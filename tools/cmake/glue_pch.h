// SPDX-License-Identifier: Apache-2.0
// Precompiled for the libraries that don't include LibTorch (fp8_precompile): what most of their sources read.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>
