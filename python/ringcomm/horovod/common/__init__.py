"""What programs import from `horovod.common`."""
