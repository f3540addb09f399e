"""CPU time."""
import resource

elsewhere = 0.0  # of processes that are no children of this one (warm.py)

def cpu_seconds() -> float:
  """CPU seconds of this process and of its children that have ended; of forks that work for it, too."""
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in used) + elsewhere
