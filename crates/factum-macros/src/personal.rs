//! EVT-X3, SEC-3: personal data stands in `Personal<T>`, and that on restricted topics only.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::attribute::Errors;
use crate::fields::{Carrier, WireField};
use crate::foreign;
use crate::wire_type::{innermost, is_plain, named, names_itself, says_personal};
use crate::words::{ending, words};

/// What a field's name ends with when the field holds personal data, each written as one word.
///
/// The last word decides, since that is what the field is: `customer_email` is one, `email_sent`, `email_verified`,
/// `phone_calls` and `address_id` are not. `name` alone is not, nor are a city, a country, a BIC and an account
/// number: they are rarely those of a person. An age, a place on the map, a picture and a device can be: the list
/// can't know, and `Personal<T>` takes them, too.
const PERSONAL: &str = "
    email emailaddress emailaddr mail mailaddress mailaddr
    phone phonenumber telephone telephonenumber tel mobile mobilenumber mobilephone cellphone cellphonenumber
    landline fax faxnumber msisdn imsi imei whatsapp
    firstname lastname fullname givenname familyname surname forename middlename maidenname birthname nickname
    christianname secondname middleinitial initials username
    personname customername contactname recipientname employeename patientname holdername ownername cardholder
    cardholdername accountholder accountholdername clientname membername guestname passengername drivername
    buyername payername payeename subscribername studentname candidatename applicantname beneficiaryname
    nameoncard contactperson
    birthdate dateofbirth dob birthday birth birthtime birthplace placeofbirth yearofbirth birthyear
    address addr addressline street streetname streetaddress housenumber houseno streetnumber postcode zip zipcode
    postalcode postaladdress plz
    passport passportnumber ssn socialsecurity socialsecuritynumber taxid taxnumber taxpayerid
    taxidentificationnumber nationalid nationalidnumber nationalinsurance nationalinsurancenumber nino
    nhsnumber idcard identitycard idnumber idcardnumber personalid personalnumber personalidnumber
    driverlicence driverlicense driverslicence driverslicense drivinglicence drivinglicense
    driverlicencenumber driverlicensenumber driverslicensenumber drivinglicencenumber
    licenseplate licenceplate numberplate insurancenumber healthinsurancenumber
    card cardnumber creditcard creditcardnumber debitcard debitcardnumber bankcard pan cvv cvc
    iban bankaccount bankaccountnumber
    ip ipaddress ipaddr ipv ipvaddress macaddress remoteaddr
    gender sex nationality citizenship ethnicity religion maritalstatus disability diagnosis medicalrecord
    medicalhistory bloodtype sexualorientation
    contactdetails contactdata emergencycontact nextofkin residence personaldata personaldetails
    ";

/// Cards that are no bank's, and addresses that are nobody's.
const NOT_PERSONAL: &str = "
    giftcard scorecard wildcard flashcard reportcard soundcard graphicscard networkcard simcard postcard
    contractaddress memoryaddress baseaddress
    ";

/// Words behind the one that decides, which leave it what it is: `address_line_1`, `email_hash`. What was hashed
/// or masked is still about the person.
const TRANSPARENT: &str = "
    line lines number no nr raw value hash hashed masked normalised normalized plain old new primary secondary
    ";

/// Words at the beginning that tell of a flag or of a count.
const FLAGS: &str = "is has had was were can should must needs num count";

/// Reports what the spelling tells; what only the types tell is asked for by the code that is returned.
pub(crate) fn check(
    field: &WireField<'_>,
    carrier: &Carrier<'_>,
    errors: &mut Errors,
) -> TokenStream {
    let mut assertions = TokenStream::new();
    let marked = says_personal(field.ty);
    let name = field.ident.unraw().to_string();
    let ty = field.ty;

    if lacks_mark(field, &name) {
        if is_plain(ty) {
            errors.push(
                field.ident.span(),
                name_message(&name, "write `Personal<String>`", carrier),
            );
        } else if !names_itself(ty, carrier.ident()) {
            // A snapshot of the user's own, which may hold it in `Personal<T>` inside.
            let shown = named(innermost(ty)).map_or_else(
                || "its type".to_owned(),
                |segment| format!("`{}`", segment.ident),
            );
            let mend =
                format!("mark with `Personal<…>` what is personal in {shown}, which marks nothing");
            let message = name_message(&name, &mend, carrier);
            assertions.extend(quote_spanned! { field.ident.span() =>
                #[allow(clippy::panic, clippy::manual_assert)]
                const _: () = if <#ty as __factum::Snapshot>::CONTENT.personal.is_none() {
                    ::core::panic!("{}", #message)
                };
            });
        }
    }
    if marked && field.claims.not_personal {
        let message = format!(
            "`{name}` is marked as personal data and excepted as none: remove `Personal` or `not_personal` (SEC-3)"
        );
        errors.push(field.ident.span(), message);
    }
    if marked && let Some(mark) = field.claims.aggregate_id {
        let message = "the aggregate id is the key of every record and stands in logs, where no personal data \
                       belongs: take an id that was made up, and carry the personal data in another field \
                       (PROD-2, SEC-3)";
        errors.push(mark, message);
    }
    let Carrier::Event {
        topic,
        restricted: false,
        ..
    } = carrier
    else {
        return assertions;
    };
    let mend = format!(
        "{} is not declared as restricted: leave the field out and carry an id, or, if few may read the topic, add \
         `restricted` to `#[event(…)]` (EVT-X3, SEC-3)",
        topic_noun(topic)
    );
    if marked {
        errors.push_on(ty, format!("`{name}` is personal data, and {mend}"));
    } else if !is_plain(ty) {
        let (before, after) = (
            format!("`{name}` holds personal data, `"),
            format!("`, and {mend}"),
        );
        assertions.extend(quote_spanned! { ty.span() =>
            #[allow(clippy::panic, clippy::manual_assert)]
            const _: () = {
                const PARTS: [&::core::primitive::str; 3] = [
                    #before,
                    __factum::personal_place(<#ty as __factum::Snapshot>::CONTENT),
                    #after,
                ];
                const TEXT: [::core::primitive::u8; __factum::length_of(&PARTS)] =
                    __factum::concatenate(&PARTS);
                if !PARTS[1].is_empty() {
                    ::core::panic!("{}", __factum::as_text(&TEXT))
                }
            };
        });
    }
    assertions
}

/// The expression of `Content::personal` for a snapshot of these fields.
///
/// A field that lacks its `Personal<T>` is taken as if it had it: that mistake is reported in its place, and shall not
/// be one more wherever the snapshot is used.
pub(crate) fn content(fields: &[WireField<'_>], own: &syn::Ident) -> TokenStream {
    let found = fields
        .iter()
        .filter(|field| !names_itself(field.ty, own))
        .filter_map(|field| {
            let ty = field.ty;
            let name = field.ident.unraw().to_string();
            let place = format!("{}.{name}", own.unraw());
            if says_personal(ty) || lacks_mark(field, &name) {
                return Some(quote! { ::core::option::Option::Some(#place), });
            }
            let known = is_plain(ty) || foreign::is_foreign(ty);
            (!known).then(|| {
                quote_spanned! { ty.span() =>
                    __factum::personal_at(#place, <#ty as __factum::Snapshot>::CONTENT),
                }
            })
        });
    quote! { __factum::first_personal(&[#(#found)*]) }
}

/// Whether the field is personal data by its name, and neither marked nor excepted.
fn lacks_mark(field: &WireField<'_>, name: &str) -> bool {
    !says_personal(field.ty)
        && !field.claims.not_personal
        && !is_flag(field.ty)
        && means_personal_data(name)
}

/// A flag tells whether there is such a thing, and not which.
fn is_flag(ty: &Type) -> bool {
    named(innermost(ty)).is_some_and(|segment| segment.ident == "bool")
}

fn listed(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|listed| listed == word)
}

/// Whether a field of this name holds personal data.
fn means_personal_data(name: &str) -> bool {
    let words = words(name);
    if words.first().is_some_and(|first| listed(FLAGS, first))
        || matches!(&words[..], [number, of, ..] if of == "of" && listed("number no count", number))
    {
        return false;
    }
    let mut words: Vec<String> = words
        .iter()
        .map(|word| {
            word.trim_end_matches(|c: char| c.is_ascii_digit())
                .to_owned()
        })
        .filter(|word| !word.is_empty())
        .collect();
    loop {
        if ends_with_any(&words, NOT_PERSONAL) {
            return false;
        }
        if ends_with_any(&words, PERSONAL) {
            return true;
        }
        match words.pop() {
            Some(last) if listed(TRANSPARENT, &last) => {}
            _ => return false,
        }
    }
}

/// In the singular or in the plural.
fn ends_with_any(words: &[String], list: &str) -> bool {
    list.split_whitespace().any(|term| {
        ending(words, term).is_some()
            || ending(words, &format!("{term}s")).is_some()
            || ending(words, &format!("{term}es")).is_some()
    })
}

/// After a mistake in the declaration the topic isn't known.
fn topic_noun(topic: &str) -> String {
    if topic.is_empty() {
        "the event's topic".to_owned()
    } else {
        format!("the topic `{topic}`")
    }
}

/// `mend` completes "on a topic that few may read, …".
fn name_message(name: &str, mend: &str, carrier: &Carrier<'_>) -> String {
    let exception = |attribute: &str| {
        format!(
            "if it is about no person, say why: `#[{attribute}(not_personal = \"…\")]` (EVT-X3, SEC-3)"
        )
    };
    match carrier {
        Carrier::Event {
            topic,
            restricted: false,
            ..
        } => format!(
            "by its name `{name}` is personal data, and everyone may read {}: leave it out and carry an id, such \
             as `customer_id`; on a topic that few may read, {mend}, and add `restricted` to `#[event(…)]`; {}",
            topic_noun(topic),
            exception("event")
        ),
        Carrier::Event { .. } => format!(
            "by its name `{name}` is personal data: {mend}; {}",
            exception("event")
        ),
        Carrier::Snapshot { .. } => format!(
            "by its name `{name}` is personal data: leave it out and carry an id, or, for events of a restricted \
             topic, {mend}; {}",
            exception("snapshot")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_personal_data_are_found_in_every_spelling() {
        let names = "
            email e_mail eMail email_address emailAddress emailaddress mail mail_address customer_email
            customerEmail customerEMail contact_e_mail emails email_hash email_2 email2 old_email email_old
            phone phone_number phoneNumber phonenumber home_phone mobile mobile_number mobile_phone telephone
            tel cell_phone phones fax fax_number msisdn phone_no phone1
            first_name firstName firstname first_names last_name lastName lastname full_name fullName fullname
            given_name givenName family_name familyName surname sur_name middle_name middleName maiden_name
            birth_name forename nickname nick_name username user_name customer_name customerName contact_name
            recipient_name cardholder card_holder card_holder_name cardholder_name patient_name
            birth_date birthDate birthdate date_of_birth dateOfBirth dateofbirth dob birthday birth_day
            customer_birthday place_of_birth birth_place year_of_birth
            address addresses billing_address billingAddress home_address address_line address_line_1
            address_line1 addressLine2 street street_name street_address house_number house_no postcode post_code
            postal_code zip zip_code zipCode zipcode delivery_zip
            passport passport_number passportNumber passport_no passports ssn customer_ssn social_security
            social_security_number socialSecurityNumber tax_id taxId taxid tax_number national_id nationalId
            national_insurance_number nino id_card identity_card driver_licence drivers_license driverLicense
            driving_licence license_plate number_plate
            card card_number cardNumber cardnumber credit_card creditCard creditcard credit_card_number
            debit_card card_no cards pan card_pan cvv cvc cvv2
            iban customer_iban IBAN ibans bank_account bank_account_number
            ip client_ip clientIp IP ip_address ipAddress ipaddress ipv4 ipv6 ipv4_address remote_addr homeIP
            gender nationality religion citizenship marital_status ethnicity blood_type sex
            r_email hash_of_email name_on_card medical_history
        ";
        for name in names.split_whitespace() {
            assert!(means_personal_data(name), "{name}");
        }
        assert!(names.split_whitespace().count() > 120);
    }

    #[test]
    fn other_names_are_not_taken_for_personal_data() {
        let names = "
            name product_name displayName emailed_at email_sent email_sent_at email_verified email_verified_at
            email_count email_template email_domain mailing mailed_at mailbox_size
            ship shipment tip zip_file zipped zip_file_size chip clip equipment recipe ip_count ip_version
            phone_calls_total phone_calls phone_verified phone_country megaphone phonetic headphones_count
            card_count card_type card_brand card_expiry discard discarded cardinality cardboard gift_card
            gift_cards score_card scorecard wildcard wild_card sim_card card_id
            address_id addressId address_type addressed_at addressee_id contract_address address_country
            street_id passport_id passport_country passported passport_valid_until
            iban_valid iban_country iban_id tax tax_rate taxId_kind tax_amount vat_id
            gender_count nationality_id sexed sextet unisex
            customer_id user_id person_id birth_date_verified birthday_sent birth_rate
            first_name_length last_name_changed surname_changed_at full_name_set names
            bic account_number city country country_code currency amount total note sku quantity state
            is_mobile has_email was_mobile number_of_emails count_of_cards no_of_phones num_cards count_cards
            mobile_app mobile_version panel pancake company_pane span panorama japan_share
            email_address_id phone_number_confirmed cell_count cellular accelerated excel
            telegram telling hotel intel tell faxed_at dobby adobe adobes
            pin_code_length order_ref order_id invoice_ref line_2 line2 version number line_number value
            seq from to title label text type kind
        ";
        for name in names.split_whitespace() {
            assert!(!means_personal_data(name), "{name}");
        }
        assert!(names.split_whitespace().count() > 100);
    }
}
