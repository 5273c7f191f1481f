"""The race: pagetier beside what people would choose instead. `make race` runs it and writes docs/race.md.

Read in this order: contestants (the systems), contests (what is measured), rounds.py and engine_process.py (how),
report (what is made of it).
"""
