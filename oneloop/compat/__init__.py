"""Other trainers' scripts, names and habits on oneloop: everything that exists for compatibility."""
