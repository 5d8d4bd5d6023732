"""A worker as a process: started, watched, spoken to with deadlines, ended for certain."""
