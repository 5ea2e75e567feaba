// Elements are with all else that programs need of the device.
#pragma once
#include "device/program/support.cuh"
