"""What a Run may do: permission rules, and how they decide about a call."""
