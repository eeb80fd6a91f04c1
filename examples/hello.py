import platform

print("hello from Python", platform.python_version())
