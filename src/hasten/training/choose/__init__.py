"""What a run chooses by measurement before its first step."""
