"""The client's commands of `pagetier`: replay and calibrate."""
