"""Values of the server's options. It needs no library of the server's."""
LOCAL = ("localhost", "127.0.0.1", "::1")  # names of this machine
LOGS = ("text", "json", "none")            # forms of the access log
