"""Several worker processes under one parent: started, watched, replaced, reloaded."""
