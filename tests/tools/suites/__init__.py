"""llama.cpp's own server tests against this server and against llama-server: see tests/tools/server_suites.py."""
