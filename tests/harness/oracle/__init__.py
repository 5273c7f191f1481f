"""What must be true when anything dies: pages that say what they are, journals that outlive SIGKILL, and a checker."""
