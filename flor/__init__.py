"""flor: hindsight logging for machine learning."""
