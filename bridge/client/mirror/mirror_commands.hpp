// SPDX-License-Identifier: BSD-3-Clause
// The state of a mirror, for people and monitoring.
#pragma once

#include "bridge/client/config.hpp"
#include "bridge/client/mirror/mirror.hpp"
#include "bridge/control/commands.hpp"

namespace rnbd::mirror {

class MirrorSource;

/// "in step", "resync", ...
const char* name_of(Group::Standing standing);

/// The answer to `mirror status`.
Json describe(const ClientConfig& config, const MirrorStatus& status);

/// The answer to `mirror verify status`.
Json describe_verify(const MirrorStatus& status);

/// `mirror status|verify|add|discard|force ...`; null: the disk is no mirror.
tl::expected<Json, Failure> about_mirror(const ClientConfig& config, MirrorSource* source,
                                         const std::string& words);

/// The sessions of all members as one, for readers that expect a single session.
SessionStatus as_session(const ClientConfig& config, const MirrorStatus& status);

}  // namespace rnbd::mirror
