"""The processor's seconds."""
import resource

def cpu_seconds() -> float:
  """Of the processor: this process's, and those of its children that have ended."""
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in used)
