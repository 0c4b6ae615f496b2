#pragma once  // kernels of the tests are in f32
