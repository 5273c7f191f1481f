"""The oracle of the crash tests: pages that identify themselves, journals that survive SIGKILL, and a checker."""
