"""What the backends share. No framework is imported here."""
