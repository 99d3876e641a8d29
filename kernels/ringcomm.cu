/*
 * All kernels: one unit, one fatbin, one module to load.
 */
#include "oneshot.cu"
#include "plan.cu"
#include "probe.cu"
#include "reduce.cu"
