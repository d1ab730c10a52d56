"""The comparison with others: that it measures what it says, with whoever is installed here."""
