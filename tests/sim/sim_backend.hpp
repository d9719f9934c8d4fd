// SPDX-License-Identifier: BSD-3-Clause
// The backend that the server's catalogue opens: a door to the simulated storage.
#pragma once

#include <memory>

#include "bridge/backend/backend.hpp"

namespace sim {

class Disk;
class Storage;

std::unique_ptr<rnbd::Backend> make_backend(Storage& storage, const Disk& disk, bool read_only);

}  // namespace sim
