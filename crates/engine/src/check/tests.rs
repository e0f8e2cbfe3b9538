//! One bad program for each kind of finding, and none for good ones.
