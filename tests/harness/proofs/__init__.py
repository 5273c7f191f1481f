"""Proofs: the tests that take minutes, run again only after a change of what they prove.

A proof consists of shards: commands of at most about a minute that print lines `proof: ...`, the same for a seed on
every machine. The lock of a proof, tests/proofs/NAME.json, keeps these lines and a digest of the proof's inputs. `make
prove` renews the locks that are stale, `make lint` names those, and the gate repeats some shards and compares.
"""
