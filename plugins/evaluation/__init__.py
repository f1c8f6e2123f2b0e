"""Evaluations of diffusion bases (`base_quality`) and of controls (`control_fidelity`, `comparison`)."""
