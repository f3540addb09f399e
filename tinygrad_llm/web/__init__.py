"""The server: HTTP with limits and deadlines, its life, and one model that many clients share."""
