// Package mcs has the rules of the Multi-Cluster Services API (KEP-1645): what the exports of
// one namespace and name in several clusters make together. All is pure.
//
//	ServiceExport + Service, per cluster ─> Offer ─> Rank ─> Merge ─> Import, Conflict
//	                                                           │
//	                  ServiceImport, Service derived-..., conditions of exports
//
// Each cluster computes the import by itself, from the same exports, so that all come to the
// same one without a broker. See docs/decisions/0036-order-of-exports.md for the exception.
package mcs
