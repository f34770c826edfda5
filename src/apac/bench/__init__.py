"""Benchmarks: the speed of apac compared with other libraries and with the peak of the machine."""
