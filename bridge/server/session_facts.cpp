// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/session_facts.hpp"

#include "bridge/protocol/printable.hpp"

namespace rnbd {

std::string SessionFacts::in_words() const { return in_quotes(name) + " (" + peer + ")"; }

}  // namespace rnbd
