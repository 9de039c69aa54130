"""sweeps: schedules many tinyllm trials over a Ray cluster."""
