"""tinygrad imports this name for DEV=MOCK+NV. The interface of nv.py opens no device files."""
class MockFileIOInterface: pass
