"""CPU time."""
import resource

def cpu_seconds() -> float:
  """CPU seconds of this process and of its children that have ended."""
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in used)
