// Loaders have what they need of the loop with the pipeline.
#pragma once
#include "device/loop/pipeline.cuh"
