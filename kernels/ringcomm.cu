/*
 * All kernels: one unit, one fatbin, one module to load.
 */
#include "costs.cu"
#include "delay.cu"
#include "oneshot.cu"
#include "plan.cu"
#include "reduce.cu"
