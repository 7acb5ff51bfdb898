"""Pure decisions: what to do with a fault, when to try again. Clocks, sleeps and randomness are injected."""
