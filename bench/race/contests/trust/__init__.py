"""What each system does when something fails. The systems run side by side: no number here is a speed."""
