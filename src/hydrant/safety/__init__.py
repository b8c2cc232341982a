"""What a config of a stranger may not do: which code it may call, which projects the user trusts."""
