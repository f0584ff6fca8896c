"""Programs that the doctor is judged on."""
