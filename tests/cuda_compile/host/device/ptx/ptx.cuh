// Functions of programs ask for no instructions of their own on the host.
#pragma once
#include "device/program/support.cuh"
