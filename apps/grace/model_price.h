#pragma once

#include "grace/sizing/model_price.h"
