"""What happens while a script runs. Standard library only."""
