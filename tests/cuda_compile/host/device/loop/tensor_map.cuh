#pragma once
#include "device/abi/roles.h"
#include "device/program/support.cuh"
