// SPDX-License-Identifier: BSD-3-Clause
// Text as GnuTLS takes it.
#pragma once

#include <gnutls/gnutls.h>

#include <string_view>

namespace rtrs::tls {

/// `text` as an argument that GnuTLS only reads. It has to outlive the call.
inline gnutls_datum_t datum_of(std::string_view text) {
  return {reinterpret_cast<unsigned char*>(const_cast<char*>(text.data())),
          static_cast<unsigned>(text.size())};
}

}  // namespace rtrs::tls
