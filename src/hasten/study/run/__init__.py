"""`hasten doctor RUN`: a bounded number of a run's own steps, and what they say about where its time goes."""
