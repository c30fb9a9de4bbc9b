#pragma once

#include "grace/sizing/sizes.h"
