"""Injection: a process is killed, stopped or disturbed at a failpoint, or at a call of the disk worker, then judged."""
