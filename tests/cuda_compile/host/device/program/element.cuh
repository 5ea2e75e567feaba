#pragma once
#include "device/program/support.cuh"
