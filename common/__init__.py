"""Code that FILM, the control plugins and REVEAL share; this package imports none of them."""
