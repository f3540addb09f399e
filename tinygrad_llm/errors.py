class InputError(Exception):
  """
  Bad input from the user: a file, a flag, an environment variable.

  The message is one line that names the input, the field and the fix. The commands print it to stderr and exit with
  code 2.
  """
