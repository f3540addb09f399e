"""As mockgpu.py: a name that tinygrad imports and nothing here uses."""
class MockUSB3: pass
