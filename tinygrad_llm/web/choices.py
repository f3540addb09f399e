"""Values of the server's options. It needs no library of the server's."""
LOCAL = ("localhost", "127.0.0.1", "::1")  # names of this machine
LOGS = ("text", "json", "none")            # forms of the access log
# sampling where neither the request, the command nor the model's file says anything; llama-server's
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
