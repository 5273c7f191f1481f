"""What all of the daemon uses: exit codes, log throttling, histograms, progress, systemd notification."""
